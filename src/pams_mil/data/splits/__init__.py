"""Patient-disjoint splits: dealing patients, and the files that carry the result."""
