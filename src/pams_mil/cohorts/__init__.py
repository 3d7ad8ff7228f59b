"""Cohorts that need no download: real digits, planted lesions, and local copies of CIFAR-10."""
