"""`make deploy-test`: a cluster on hosts of its own, deployed over ssh from one bundle."""
