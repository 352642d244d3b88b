"""What every clean-up needs: the graphs of a model, their constants, changes that keep names."""
