"""What happened inside, as arrays: functions of modules and tensors, without a run and without drawing."""
