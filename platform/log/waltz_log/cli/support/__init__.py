"""Commands that help to find a cause: settings with their origin, explanations of errors, a self-test, a bundle."""
