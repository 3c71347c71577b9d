-- When a version that was in force already was set again, unchanged. Before, each time made a new version, and all versions with a
-- URL are read with each result of a delivery to it.
ALTER TABLE "webhook_configuration" ADD COLUMN "set_at" TIMESTAMPTZ(3);
