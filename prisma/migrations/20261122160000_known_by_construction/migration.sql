-- An event is written by the statement that changes its verification, of that statement's own rows, and a verification for a
-- project that its key belongs to: no project is ever deleted, nor could it be, with keys and usage that refer to it. To check
-- both again for every row took Postgres a tenth of a creation and of a message, and each batch a shared lock on the
-- project's row. Tables are locked in the order in which creations lock them; the look-up of a window takes verifications
-- before projects, and a deadlock with one is tried again.
LOCK TABLE "project", "verification", "event" IN ACCESS EXCLUSIVE MODE;
ALTER TABLE "verification" DROP CONSTRAINT "verification_project_id_fkey";
ALTER TABLE "event" DROP CONSTRAINT "event_verification_id_fkey";
