"""Programs inside the engine: their steps, flows and timers."""
