"""What every model shares: packed bags in, checked, one output per level out; models by name; published weights."""
