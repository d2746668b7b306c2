"""Image classifiers with published weights, as examples to explain."""
