-- The secret of a verification's window stands with the verification, which its address now names: no table of tokens has to
-- be written, searched and cleared. `window_token` holds what versions before this one have handed out.
ALTER TABLE "verification" ADD COLUMN "window_digest" BYTEA;
