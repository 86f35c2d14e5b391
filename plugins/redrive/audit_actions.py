"""What ``audit_events`` tells: one word per thing that happens, and what it means. docs/states.md shows the list."""

from enum import StrEnum

from redrive.lifecycle import Decision


class Action(StrEnum):
    """The word in ``audit_events.action``."""

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> "Action":
        """A member that knows what it means."""
        one = str.__new__(cls, value)
        one._value_ = value
        one.meaning = meaning
        return one

    # A run and its route
    TAKE_OVER_ROUTE = "take_over_route", "a run took the route from one whose lease had run out"
    MOVE_ROUTE = "move_route", "the route is on another broker or connection now"
    CHANGE_CONFIGURATION = "change_configuration", "the run began with another configuration than the one before"
    PAUSE = "pause", "no run begins, and none sends"
    RESUME = "resume", "runs begin again"
    # Staging and load
    DRAIN_BEYOND_LIMIT = "drain_beyond_limit", "a drain went on, because messages would have expired"
    RECORD_BATCH = "record_batch", "a staging file is durable and recorded"
    ABANDON_BATCH = "abandon_batch", "a file that was never recorded is given up"
    GIVE_UP_BATCH = "give_up_batch", "a person gave up a file that was lost before its load"
    LOAD = "load", "batches became messages"
    GIVE_ANOTHER_ID = "give_another_id", "copies claimed ids that this ledger never gave to them"
    RETURN = "return", "redelivered messages came back"
    HAND_OVER = "hand_over", "what came back to another route is a message of that one"
    CLASSIFY_AGAIN = "classify_again", "what came back has the cause of its newest copy"
    RENEW_KEYS = "renew_keys", "keys were taken anew from staging, as the configuration names another key"
    MERGE_GROUPS = "merge_groups", "two groups turned out to be one"
    RULE_MERGE = "rule_merge", "somebody said that two groups are one failure"
    RULE_SPLIT = "rule_split", "somebody said that what is one group are two failures"
    REVOKE_RULING = "revoke_ruling", "somebody took back what was said about groups"
    SPLIT_GROUPS = "split_groups", "what was one group is told apart from now on"
    REFUSE_RULING = "refuse_ruling", "what somebody said about groups can't hold"
    FOLLOW_RULING = "follow_ruling", "open questions of a merged group are asked under the other's name"
    FORGET = "forget", "retention removed messages that are finished"
    # Plan and gates
    PLAN = "plan", "messages wait, are held, discarded or given to people, as the policy says"
    AIM = "aim", "messages go where the configuration says now"
    EXPIRE = "expire", "older than give_up_after"
    REFUSE_DESTINATION = "refuse_destination", "nobody knows where they go, or that destination can't be sent to"
    STEP_GATE = "step_gate", "the gate of a group went to another stage"
    STEP_BREAKER = "step_breaker", "the breaker of a destination went to another stage"
    RELEASE_GATE = "release_gate", "a person lets a group or a destination try again"
    ADMIT = "admit", "held messages may go"
    HOLD_BACK = "hold_back", "waiting messages may not go now"
    PUT_TO_REVIEW = "put_to_review", "a person has to decide; the reason says why"
    # Deliveries
    CLAIM = "claim", "a delivery claimed messages for one attempt"
    CLAIM_RESEND = "claim_resend", "a delivery claimed unknown sends for the same attempt again"
    GIVE_BACK = "give_back", "claimed messages that were certainly not sent"
    SEND = "send", "the broker has them"
    LOSE_SIGHT = "lose_sight", "nobody knows whether they were sent"
    RECOVER_SLICE = "recover_slice", "a delivery that died is settled; at most one confirm window is unknown"
    REFUSE_SEND = "refuse_send", "what a person released can't be sent"
    SUPPRESS = "suppress", "not sent, because it was processed already"
    PRESUME = "presume", "the observation window closed without them"
    CONFIRM = "confirm", "the processed check found them"
    # Review
    ESCALATE = "escalate", "people are asked"
    ASK = "ask", "people are asked again about a message whose question was gone"
    ASK_ABOUT_SUSPECTED = "ask_about_suspected", "people are asked about copies that may be second ones"
    TAKE_IN_SUSPECTED = "take_in_suspected", "a suspected copy became a message, as somebody decided about it"
    REOPEN = "reopen", "a decision was not carried out, and is asked again"
    REFUSE_DECISION = "refuse_decision", "a decision can't be carried out"
    NOTE = "note", "somebody changed the note of a review row"
    DECIDE_REDELIVER = "decide_redeliver", "somebody decided so"
    DECIDE_DISCARD = "decide_discard", "somebody decided so"
    DECIDE_EDIT = "decide_edit", "somebody decided so"
    DECIDE_NOT_THERE = "decide_not_there", "somebody decided so"
    WITHDRAW_REDELIVER = "withdraw_redeliver", "that decision was taken back"
    WITHDRAW_DISCARD = "withdraw_discard", "that decision was taken back"
    WITHDRAW_EDIT = "withdraw_edit", "that decision was taken back"
    WITHDRAW_NOT_THERE = "withdraw_not_there", "that decision was taken back"
    APPROVE_REDELIVER = "approve_redeliver", "a second person approved that decision"
    APPROVE_DISCARD = "approve_discard", "a second person approved that decision"
    APPROVE_EDIT = "approve_edit", "a second person approved that decision"
    APPROVE_NOT_THERE = "approve_not_there", "a second person approved that decision"
    APPROVE_NOTHING = "approve_nothing", "somebody approved where nothing is decided"
    UNAPPROVE_REDELIVER = "unapprove_redeliver", "that approval was taken back"
    UNAPPROVE_DISCARD = "unapprove_discard", "that approval was taken back"
    UNAPPROVE_EDIT = "unapprove_edit", "that approval was taken back"
    UNAPPROVE_NOT_THERE = "unapprove_not_there", "that approval was taken back"
    UNAPPROVE_NOTHING = "unapprove_nothing", "that approval was taken back"
    APPLY_REDELIVER = "apply_redeliver", "that decision was carried out"
    APPLY_DISCARD = "apply_discard", "that decision was carried out"
    APPLY_EDIT = "apply_edit", "that decision was carried out"
    APPLY_NOT_THERE = "apply_not_there", "that decision was carried out"
    MAKE_STANDING_REDELIVER = "make_standing_redeliver", "a decision also holds for what its group escalates later"
    MAKE_STANDING_DISCARD = "make_standing_discard", "a decision also holds for what its group escalates later"
    APPROVE_STANDING_REDELIVER = "approve_standing_redeliver", "a second person approved a standing decision"
    APPROVE_STANDING_DISCARD = "approve_standing_discard", "a second person approved a standing decision"
    REVOKE_STANDING_REDELIVER = "revoke_standing_redeliver", "a standing decision ended"
    REVOKE_STANDING_DISCARD = "revoke_standing_discard", "a standing decision ended"
    APPLY_STANDING_REDELIVER = "apply_standing_redeliver", "a standing decision decided about messages"
    APPLY_STANDING_DISCARD = "apply_standing_discard", "a standing decision decided about messages"
    CHANGE_ISSUE = "change_issue", "somebody said how far they are with a failure"
    COMMENT = "comment", "somebody said something about a failure"
    SAVE_FILTER = "save_filter", "somebody gave a filter of the page a name"
    REMOVE_FILTER = "remove_filter", "somebody removed a saved filter"
    # Restore
    BEGIN_RESTORE = "begin_restore", "messages are about to be put back"
    UNDO_RESTORE = "undo_restore", "the broker certainly does not have it"
    FINISH_RESTORE = "finish_restore", "it is in its source again"
    DOUBT_RESTORE = "doubt_restore", "a restore ended without an answer: it may be in its source"
    DOUBT_BACKUP = "doubt_backup", "the ledger was restored from a backup: what it calls unsent may have been sent"
    # Consumers
    ISOLATE_CONSUMER = "isolate_consumer", "a consumer that gets nowhere counts as gone"
    FREE_CONSUMER = "free_consumer", "an isolated consumer counts again"
    CLOSE_CONNECTION = "close_connection", "the broker was asked to close the connection of a stuck consumer"
    CONNECTION_STAYED = "connection_stayed", "the broker did not close it"


def of(verb: str, decision: str) -> Action:
    """The action that is about one kind of decision: ``decide``, ``apply``, ``apply_standing`` and so on."""
    return Action(f"{verb}_{decision}")


def decision_of(action: str) -> tuple[str, Decision] | None:
    """The verb and the decision of an action that is about one; None for all others."""
    for decision in Decision:
        verb, found, _ = action.partition(f"_{decision}")
        if found and action == f"{verb}_{decision}":
            return verb, decision
    return None
