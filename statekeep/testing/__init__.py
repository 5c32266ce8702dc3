"""What authors of backends test with: conformance kit, fault injection, fake clock."""
