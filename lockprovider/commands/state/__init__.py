"""`lockprovider state`: look at a state file, change it, edit it, and let Terraform keep its state there."""
