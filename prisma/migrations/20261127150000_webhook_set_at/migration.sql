-- When its URL was last set again. Setting what is in force already makes no version any more: all versions with a URL are read with
-- each result of a delivery to it.
ALTER TABLE "webhook_configuration" ADD COLUMN "set_at" TIMESTAMPTZ(3);
