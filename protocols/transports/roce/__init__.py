"""RoCE transports: go-back-N, DCQCN, HPCC and TIMELY."""
