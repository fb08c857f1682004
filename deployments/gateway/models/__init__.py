"""Which models a gateway serves, with the queue, the reuse and the recording of each."""
