"""The choice of a candidate for each region within an error."""
