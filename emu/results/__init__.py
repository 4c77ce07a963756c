"""What has been carried out: reports of agents verified and made into the tables of a Result."""
