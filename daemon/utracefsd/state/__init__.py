"""What outlives the daemon: a log of events and settings, and the folder where a successor finds all that was
left."""
