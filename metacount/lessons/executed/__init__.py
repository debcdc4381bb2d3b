"""What lessons execute: small modules run beside the same steps in plain arithmetic."""
