"""Records of other libraries as events: `opentelemetry`, `structlog`. They import these libraries."""
