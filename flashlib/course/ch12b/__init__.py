"""Chapter 12½: five products, one awkward gradient, and sums that come in one order."""
