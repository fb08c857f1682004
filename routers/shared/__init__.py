"""What the schedulers of batches and of streams share; knows neither."""
