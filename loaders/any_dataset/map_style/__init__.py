"""Any map-style dataset of torch: fetched, changed, dealt out to ranks, resumed."""
