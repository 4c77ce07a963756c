"""What can be carried here, and what each host and switch has to do: probing, choosing, planning."""
