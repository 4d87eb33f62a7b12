"""All algorithms on one recorded batch: their gradients beside one another, and beside the exact one."""
