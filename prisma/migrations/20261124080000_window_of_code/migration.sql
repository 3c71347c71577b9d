-- The secret of a verification's window stands by its digest with the code, which is kept for as long as a window can be opened
-- and then goes with it. So an address holds nothing but its secret, and no table of tokens has to be written and cleared.
-- `window_token` holds what 0.1.0 has handed out.
ALTER TABLE "live_code" ADD COLUMN "window_digest" BYTEA;
CREATE INDEX "live_code_window" ON "live_code" ("window_digest") WHERE (window_digest IS NOT NULL);

-- 0.1.0 beside this version takes a code anew without a word of its window and of who is expected: neither the address nor the
-- phone of the former holder has to do with it.
CREATE FUNCTION "forget_former_holder"() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.window_digest := NULL;
  NEW.expected_phone := NULL;
  RETURN NEW;
END
$$;
CREATE TRIGGER "live_code_forget_former_holder" BEFORE UPDATE OF "verification_id" ON "live_code"
  FOR EACH ROW WHEN (NEW.window_digest IS NOT DISTINCT FROM OLD.window_digest) EXECUTE FUNCTION "forget_former_holder"();
