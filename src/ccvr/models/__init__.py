"""Image → feature → score: backbones, heads with their feature transform, the split model, scoring."""
