-- Why a verification is still pending: its message came from a sender that has missed too often.
ALTER TYPE "pending_reason" ADD VALUE 'muted';
