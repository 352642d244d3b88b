"""The lowered plan: records of computations, which can be printed, compared and packed."""
