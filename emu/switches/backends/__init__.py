"""Switch backends of the testbed, one file each: a class derived from `Backend`, which makes networks on use."""
