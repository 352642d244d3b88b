"""The lowered plan: what a partition computes, as records that are printed, compared and packed."""
