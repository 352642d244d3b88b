"""The random models of the testing kit on every backend of this repository, through its pipelines.

`subjects` are what is tested, `running` runs a case with each, `slices` does so for many seeds in a
process, and ``python -m differential`` runs such processes. What models are drawn and what judges
them is `narrowpass_testing.random_models`.
"""
