"""Models run on data: samples, histograms, metrics, and comparisons of what is computed."""
