ALTER TABLE "api_key" ADD COLUMN "last_used_at" TIMESTAMPTZ(3);
ALTER TABLE "service_token" ADD COLUMN "last_used_at" TIMESTAMPTZ(3);
