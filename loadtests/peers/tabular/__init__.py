"""One scikit-learn model, served by each as its documentation shows: what a user writes."""
