"""Image classifiers with published weights, to try explanations on."""
