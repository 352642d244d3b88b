"""What candidates take and lose: nodes alone, and whole models."""
