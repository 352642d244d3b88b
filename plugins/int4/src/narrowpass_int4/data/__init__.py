"""What models compute on calibration data: activations of layers, segment by segment."""
