"""Model of a training step from a profile: events -> records -> checked timeline -> iterations -> draft."""
