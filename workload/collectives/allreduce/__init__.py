"""All-reduce algorithms: ring, trees, halving-doubling, hierarchical, in-network."""
