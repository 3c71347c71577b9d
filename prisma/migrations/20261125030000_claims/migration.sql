-- By which claim a delivery is under way: a process that the database's answer to a claim has not reached knows its own by it.
ALTER TABLE "webhook_delivery" ADD COLUMN "claim" UUID;
