"""The core's vocabulary: events in, actions out, settings, snapshot."""
