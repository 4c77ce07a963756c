"""Ultra Ethernet transport: NSCC, coalesced acknowledgements and receiver credits."""
