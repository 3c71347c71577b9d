-- What an administrator recognises a token by, as an API key has it. Tokens of before have none.
ALTER TABLE "service_token" ADD COLUMN "name" TEXT NOT NULL DEFAULT '';
