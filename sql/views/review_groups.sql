-- What people have to decide, one row per route and group, largest first when ordered by open_messages.
create view review_groups as
with reviews as (
    select
        route,
        group_id,
        sum(case when status in ('open', 'refused', 'reopened') then 1 else 0 end) as open_messages,
        sum(case when status = 'decided' then 1 else 0 end) as decided_messages,
        min(case when status in ('open', 'refused', 'reopened') then first_enqueued_at end) as oldest,
        max(escalated_at) as last_escalated_at,
        min(case when status in ('open', 'refused', 'reopened') then reason end) as why,
        min(case when status in ('open', 'refused', 'reopened') then escalation_id end) as example_id,
        max(suggested_decision) as suggested_decision
    from escalated_messages
    group by route, group_id
),

outcomes as (
    select
        route,
        group_id,
        sum(case when sent_at is not null then 1 else 0 end) as redelivered,
        sum(case when outcome = 'returned' then 1 else 0 end) as returned,
        sum(case when outcome in ('presumed', 'confirmed') then 1 else 0 end) as stayed_away
    from redelivery_attempts
    group by route, group_id
)

select
    reviews.route,
    reviews.group_id,
    failure_groups.cause,
    reviews.open_messages,
    reviews.decided_messages,
    reviews.oldest,
    failure_groups.template,
    failure_groups.example,
    failure_groups.messages as seen_in_all,
    failure_groups.first_seen_at,
    failure_groups.last_seen_at,
    coalesce(outcomes.redelivered, 0) as redelivered,
    coalesce(outcomes.returned, 0) as returned,
    coalesce(outcomes.stayed_away, 0) as stayed_away,
    reviews.suggested_decision,
    reviews.why,
    reviews.example_id
from reviews
left join failure_groups on failure_groups.group_id = reviews.group_id
left join outcomes
    on
        outcomes.route = reviews.route
        and (outcomes.group_id = reviews.group_id or (outcomes.group_id is null and reviews.group_id is null))
where reviews.open_messages > 0 or reviews.decided_messages > 0
