"""A study's own process: reads its request, drives its trials, writes its journal."""
