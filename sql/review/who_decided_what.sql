-- Who decided what, when and why? Every decision, change of mind, approval and what the machine made of it, newest first.
select
    audit_events.at,
    audit_events.actor,
    audit_events.action,
    audit_events.message_id,
    audit_events.reason,
    messages.state as state_now,
    messages.group_id
from audit_events
left join messages on messages.message_id = audit_events.message_id
where audit_events.actor <> 'redrive'
order by audit_events.event_id desc
limit 200
