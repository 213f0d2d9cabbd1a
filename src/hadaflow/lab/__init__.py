"""The theory lab: certificates, hunts, atlas and portraits."""
