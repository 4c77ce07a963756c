"""The gradwire header on the wire: its codec (`header`) and its scapy layer (`scapy_layer`)."""
