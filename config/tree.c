/* config/tree.c: from YAML events to a tree.
 *
 * libyaml's own document API follows aliases and forgets anchors and tags, so the tree is built from events:
 * each of these is refused where it stands. The text's encoding is checked before libyaml sees it, because
 * its reader knows byte offsets only. Invariants: a mapping's children come in pairs (a missing value becomes
 * a broken node); the nesting is at most DEPTH_MAX, so that walking the tree may recurse. A syntax error
 * leaves the tree as far as it was read, its open ends marked broken. Only memory makes it fail.
 */
#include "config/tree.h"

#include "core/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum { DEPTH_MAX = 8, NODES_MAX = 4000 };

struct reader {
    struct tt_tree *tree;
    struct tt_node *open; /* the innermost sequence or mapping that has not ended */
    int depth;
    int documents;
    struct tt_config_problems *problems;
    const char *text;
    size_t bytes;
    bool out_of_memory;
};

static struct tt_node *add_node(struct reader *reader, enum tt_node_kind kind, const yaml_mark_t *mark)
{
    struct tt_node *node = calloc(1, sizeof *node), *parent = reader->open;

    if (!node) {
        reader->out_of_memory = true;
        return NULL;
    }
    node->kind = kind;
    node->line = (int)mark->line + 1;
    node->column = (int)mark->column + 1;
    node->parent = parent;
    node->made_before = reader->tree->made_last;
    reader->tree->made_last = node;
    reader->tree->count++;
    if (!parent) {
        reader->tree->root = node;
    } else {
        if (parent->last)
            parent->last->next = node;
        else
            parent->first = node;
        parent->last = node;
        parent->children++;
    }
    return node;
}

static void refuse_marks(struct reader *reader, const yaml_mark_t *mark, const yaml_char_t *anchor,
                         const yaml_char_t *tag, struct tt_node *node)
{
    int line = (int)mark->line + 1, column = (int)mark->column + 1;

    if (anchor) {
        tt_problem_add(
            reader->problems, line, column,
            "the anchor `&%s` is not understood: write the value out, or put it in quotes if the & "
            "belongs to it",
            tt_quote((const char *)anchor, strlen((const char *)anchor)).text);
        node->broken = true;
    }
    if (tag) {
        tt_problem_add(reader->problems, line, column,
                       "the tag `%s` is not understood: leave it away, or put the value in quotes if the ! "
                       "belongs to it",
                       tt_quote((const char *)tag, strlen((const char *)tag)).text);
        node->broken = true;
    }
}

static void add_scalar(struct reader *reader, const yaml_event_t *event)
{
    struct tt_node *node = add_node(reader, TT_NODE_SCALAR, &event->start_mark);

    if (!node)
        return;
    node->bytes = event->data.scalar.length;
    node->text = malloc(node->bytes + 1);
    if (!node->text) {
        reader->out_of_memory = true;
        return;
    }
    memcpy(node->text, event->data.scalar.value, node->bytes);
    node->text[node->bytes] = 0;
    node->plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    refuse_marks(reader, &event->start_mark, event->data.scalar.anchor, event->data.scalar.tag, node);
}

static void add_alias(struct reader *reader, const yaml_event_t *event)
{
    struct tt_node *node = add_node(reader, TT_NODE_SCALAR, &event->start_mark);
    const char *name = (const char *)event->data.alias.anchor;

    if (!node)
        return;
    node->broken = true;
    tt_problem_add(
        reader->problems, node->line, node->column,
        "`*%s` is an alias to YAML, which is not understood: write the value out, or put it in quotes "
        "if the * belongs to it",
        tt_quote(name, strlen(name)).text);
}

/* Returns whether reading goes on. */
static bool open_node(struct reader *reader, enum tt_node_kind kind, const yaml_event_t *event)
{
    struct tt_node *node = add_node(reader, kind, &event->start_mark);

    if (!node)
        return false;
    if (kind == TT_NODE_SEQUENCE)
        refuse_marks(reader, &event->start_mark, event->data.sequence_start.anchor,
                     event->data.sequence_start.tag, node);
    else
        refuse_marks(reader, &event->start_mark, event->data.mapping_start.anchor,
                     event->data.mapping_start.tag, node);
    reader->open = node;
    if (++reader->depth > DEPTH_MAX) {
        tt_problem_add(reader->problems, node->line, node->column,
                       "lists and sections within each other more than %d deep: no option needs that",
                       DEPTH_MAX);
        return false;
    }
    return true;
}

static void close_node(struct reader *reader)
{
    reader->open = reader->open->parent;
    reader->depth--;
}

/* Returns whether reading goes on. */
static bool take_event(struct reader *reader, const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (++reader->documents > 1) {
            tt_problem_add(
                reader->problems, (int)event->start_mark.line + 1, (int)event->start_mark.column + 1,
                "a second document begins here: a configuration is one document, without a `---` line "
                "in its middle");
            return false;
        }
        break;
    case YAML_SCALAR_EVENT:
        add_scalar(reader, event);
        break;
    case YAML_ALIAS_EVENT:
        add_alias(reader, event);
        break;
    case YAML_SEQUENCE_START_EVENT:
        return open_node(reader, TT_NODE_SEQUENCE, event);
    case YAML_MAPPING_START_EVENT:
        return open_node(reader, TT_NODE_MAPPING, event);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        close_node(reader);
        break;
    case YAML_STREAM_END_EVENT:
        return false;
    default:
        break;
    }
    if (reader->tree->count > NODES_MAX) {
        tt_problem_add(reader->problems, (int)event->start_mark.line + 1, (int)event->start_mark.column + 1,
                       "more than %d values: this is no configuration", NODES_MAX);
        return false;
    }
    return !reader->out_of_memory;
}

/* The first byte of the character with this number; 0 at the end of the text. */
static char character_at(const struct reader *reader, size_t number)
{
    size_t at = 0;
    uint32_t code;

    while (at < reader->bytes && number-- > 0)
        at += tt_utf8_decode(reader->text + at, reader->bytes - at, &code);
    return at < reader->bytes ? reader->text[at] : 0;
}

/* libyaml's words for a syntax error, and the way out of the common ones. */
static void report_syntax(struct reader *reader, const yaml_parser_t *parser)
{
    const char *problem = parser->problem ? parser->problem : "this is not YAML";
    const char *context = parser->context ? parser->context : "";
    const yaml_mark_t *mark = &parser->problem_mark;
    const char *way_out = "";
    char since[64] = "";

    if (strstr(problem, "cannot start any token")) {
        if (character_at(reader, mark->index) == '\t') {
            problem = "a tab";
            way_out = ": YAML is indented with blanks";
        } else {
            way_out = ": put the value in quotes";
        }
    } else if (strstr(context, "alias") || strstr(context, "anchor")) {
        problem = "a value that begins with * or & means something else to YAML";
        way_out = ": put it in quotes";
    } else if (strstr(problem, "mapping values are not allowed")) {
        way_out = ": put a value that holds `: ` in quotes, and check the indentation";
    } else if (strstr(problem, "did not find expected key") ||
               strstr(problem, "did not find expected '-' indicator")) {
        way_out = ": the keys of one section must be indented by the same number of blanks";
    } else if (strstr(problem, "could not find expected ':'")) {
        way_out = ": each line is `key: value`";
    } else if (strstr(problem, "expected ',' or")) {
        way_out = ": is a bracket or a comma missing?";
    } else if (strstr(problem, "unexpected end of stream")) {
        way_out = ": is a closing quote missing?";
    }
    if (parser->context && (parser->context_mark.line != mark->line))
        snprintf(since, sizeof since, " (in what begins on line %zu)", parser->context_mark.line + 1);
    tt_problem_add(reader->problems, (int)mark->line + 1, (int)mark->column + 1, "%s%s%s", problem, since,
                   way_out);
}

/* A syntax error or a limit has cut the text off: what is open there, and the last value, which an unclosed
 * bracket or quote has often swollen, are not to be judged. */
static void close_broken(struct reader *reader)
{
    if (reader->open && reader->tree->made_last)
        reader->tree->made_last->broken = true;
    for (struct tt_node *node = reader->open; node; node = node->parent) {
        yaml_mark_t mark = {.line = (size_t)node->line - 1, .column = (size_t)node->column - 1};

        reader->open = node;
        node->broken = true;
        if (node->kind == TT_NODE_MAPPING && node->children % 2) {
            struct tt_node *value = add_node(reader, TT_NODE_SCALAR, &mark);
            if (value)
                value->broken = true;
        }
    }
    reader->open = NULL;
}

/* Returns whether the text is UTF-8 without control characters; otherwise says where it is not. */
static bool check_encoding(const char *text, size_t bytes, struct tt_config_problems *problems)
{
    int line = 1, column = 1;

    for (size_t i = 0; i < bytes;) {
        uint32_t code;
        size_t length = tt_utf8_decode(text + i, bytes - i, &code);

        if (length == 0) {
            tt_problem_add(
                problems, line, column,
                "byte 0x%02X is not UTF-8: save the file as UTF-8; a path that is not UTF-8 cannot be "
                "configured",
                (unsigned char)text[i]);
            return false;
        }
        if ((code < 0x20 && code != '\t' && code != '\n' && code != '\r') ||
            (code >= 0x7F && code < 0xA0 && code != 0x85) || code == 0xFEFF || code == 0xFFFE ||
            code == 0xFFFF) {
            tt_problem_add(problems, line, column, "control character U+%04X: take it out", (unsigned)code);
            return false;
        }
        if (code == '\n' || (code == '\r' && !(i + 1 < bytes && text[i + 1] == '\n'))) {
            line++;
            column = 1;
        } else {
            column++;
        }
        i += length;
    }
    return true;
}

enum tt_status tt_tree_read(struct tt_tree *tree, const char *text, size_t bytes,
                            struct tt_config_problems *problems, struct tt_error *err)
{
    size_t mark = bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0; /* a byte order mark */
    struct reader reader = {.tree = tree, .problems = problems, .text = text + mark, .bytes = bytes - mark};
    yaml_parser_t parser;
    bool more = true;

    if (!check_encoding(reader.text, reader.bytes, problems))
        return TT_OK;
    if (!yaml_parser_initialize(&parser))
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "configuration");
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)reader.text, reader.bytes);
    while (more) {
        yaml_event_t event;

        if (!yaml_parser_parse(&parser, &event)) {
            if (parser.error == YAML_MEMORY_ERROR)
                reader.out_of_memory = true;
            else
                report_syntax(&reader, &parser);
            break;
        }
        more = take_event(&reader, &event);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    close_broken(&reader);
    return reader.out_of_memory ? tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "configuration") : TT_OK;
}

void tt_tree_free(struct tt_tree *tree)
{
    struct tt_node *node = tree->made_last;

    while (node) {
        struct tt_node *before = node->made_before;
        free(node->text);
        free(node);
        node = before;
    }
    memset(tree, 0, sizeof *tree);
}
