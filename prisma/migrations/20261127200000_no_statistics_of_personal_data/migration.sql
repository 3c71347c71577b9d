-- ANALYZE, which autovacuum runs, copied values of these columns into the statistics of the query planner (pg_stats): phones, texts
-- of SMS, endpoints' answers, the URLs of windows. There they outlived their erasure, for as long as the table did not change
-- much. Without statistics the planner expects each value in a two-hundredth of all rows: statements that look one up must not
-- leave it a choice.
ALTER TABLE "verification" ALTER COLUMN "phone" SET STATISTICS 0, ALTER COLUMN "expected_phone" SET STATISTICS 0;
ALTER TABLE "live_code" ALTER COLUMN "expected_phone" SET STATISTICS 0;
ALTER TABLE "idempotency_record"
  ALTER COLUMN "key" SET STATISTICS 0,
  ALTER COLUMN "request_digest" SET STATISTICS 0,
  ALTER COLUMN "verification_url" SET STATISTICS 0;
ALTER TABLE "inbound_message"
  ALTER COLUMN "sender" SET STATISTICS 0,
  ALTER COLUMN "destination" SET STATISTICS 0,
  ALTER COLUMN "text" SET STATISTICS 0;
ALTER TABLE "inbound_sender" ALTER COLUMN "phone" SET STATISTICS 0;
ALTER TABLE "message_fingerprint" ALTER COLUMN "digest" SET STATISTICS 0;
ALTER TABLE "webhook_attempt" ALTER COLUMN "answer" SET STATISTICS 0;

-- What is there already stays unless it is removed. Before Postgres 18 only a superuser or a change of the column's type can do
-- that, and the latter locks everybody else out of the table: docs/operations.md says how.
DO $$
BEGIN
  IF current_setting('server_version_num')::int >= 180000 THEN
    PERFORM pg_clear_attribute_stats(n.nspname, c.relname, a.attname, false)
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE a.attstattarget = 0 AND c.oid IN (
      'verification'::regclass, 'live_code'::regclass, 'idempotency_record'::regclass, 'inbound_message'::regclass,
      'inbound_sender'::regclass, 'message_fingerprint'::regclass, 'webhook_attempt'::regclass
    );
  END IF;
END
$$;
