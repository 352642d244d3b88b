"""What programs feed to models, and what they read from files beside them: arrays and JSON."""
